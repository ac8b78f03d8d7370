#!/bin/sh
# Draw docs/figures from finished runs: scripts/make_figures.sh DEIT_RUN CONVIT_RUN [SASA_RUN]
# Runs like these make them. Gates move by at most the learning rate in a step, so Figures 5 and 6 need some thousand steps.
#   nearsight train clothing --model deit_nano_64 --epochs 150 --keep 40 --eval-every 4 --run runs/deit-1
#   nearsight train clothing --model convit_nano_64 --epochs 150 --keep 40 --eval-every 4 --run runs/convit-1
#   nearsight train clothing --model sasa_resnet26 --epochs 100 --run runs/sasa-1
set -eu
deit=$1
convit=$2
into=docs/figures
nearsight inspect convit_tiny --figure 3 --out $into/figure3.png
for figure in 5 7 16; do
  nearsight inspect "$deit" "$convit" --figure $figure --out $into/figure$figure.png
done
nearsight inspect "$convit" --figure 6 --out $into/figure6.png
nearsight inspect "$deit" --figure 15 --out $into/figure15.png
if [ $# -gt 2 ]; then
  nearsight inspect "$3" --figure sasa-logits --out $into/sasa-logits.png
  nearsight inspect "$3" --figure sasa-attention --out $into/sasa-attention.png
fi
