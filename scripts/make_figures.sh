#!/bin/sh
# Draw docs/figures from two finished runs: scripts/make_figures.sh DEIT_RUN CONVIT_RUN
# Runs like these make them (2 x 5 minutes on a GPU, 2 x 20 on one CPU core):
#   nearsight train clothing --model deit_nano_64 --keep 40 --run runs/deit-1
#   nearsight train clothing --model convit_nano_64 --keep 40 --run runs/convit-1
set -eu
deit=$1
convit=$2
into=docs/figures
nearsight inspect convit_tiny --figure 3 --out $into/figure3.png
for figure in 5 7 16 17; do
  nearsight inspect "$deit" "$convit" --figure $figure --out $into/figure$figure.png
done
nearsight inspect "$convit" --figure 6 --out $into/figure6.png
nearsight inspect "$deit" --figure 15 --out $into/figure15.png
