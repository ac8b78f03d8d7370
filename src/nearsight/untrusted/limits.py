"""Every bound on files from elsewhere, with its reason. A reader checks them before it decodes or allocates.

They are far above what honest files need, and low enough that a machine survives the worst file that passes.
"""

from __future__ import annotations

KIB, MIB, GIB = 2**10, 2**20, 2**30

# Images
IMAGE_PIXELS = 64_000_000  # 192 MB as RGB; the largest cameras of telephones have 50 to 200 megapixels, shown as 12
IMAGE_SIDE = 32_000  # decoders keep whole rows; WebP and JPEG end at 16 383 and 65 535
IMAGE_BYTES = 256 * MIB  # an uncompressed TIFF of the largest size, and a margin
JPEG_SCANS = 100  # a scan of a few bytes costs a pass over every block; encoders make at most twenty
JPEG_SEGMENTS = 1_000  # before the first scan; the longest known, of extended XMP, are some hundred
JPEG_EXIF_SEGMENTS = 20  # they are joined, each time in a copy of all before
PNG_CHUNKS = 100_000  # the largest image in parts of 8 KiB has 32 768
PNG_PROFILES = 1  # the format allows one; each of a kilobyte unpacks to a megabyte

# Anything compressed
UNPACKED_RATIO = 100.0  # unpacked bytes over packed ones; photographs have 1 to 30
UNPACKED_FREE = GIB  # up to here arrays may be as empty as they like: constant pictures compress 1000 to 1
UNPACKED_BYTES = 64 * GIB  # of arrays, which are held in memory
ARCHIVE_BYTES = 500 * GIB  # of an archive, which is unpacked to a disk
ARCHIVE_FREE = MIB
ENTRIES = 20_000_000  # of an archive; ImageNet-21k has 14 million images
DIRECTORY_BYTES = 64 * MIB  # of a .zip that is read as a whole (arrays, weights): half a million entries

# Tables
ROW_BYTES = 64  # what a row of a table counts for at least: an empty one takes no room in the file
TABLE_FREE = 16 * MIB  # a table may unpack to so much whatever its own size is
ROWS_AT_ONCE = 16  # of a table whose images are decoded together

# Text
SETTINGS_BYTES = MIB  # a recipe has 4 kB, a data.yaml with a thousand classes 30 kB
SETTINGS_SCALAR = 100_000  # characters of one value
SETTINGS_DIGITS = 100  # characters of one number: more take quadratic time
RECORD_BYTES = 64 * MIB  # JSON that a run keeps: manifests, states, names of categories
LOG_BYTES = GIB  # a run's log: a line of 300 bytes for three million records
LABEL_BYTES = MIB  # a .cls or .json in a shard
LABELS_BYTES = 16 * MIB  # the boxes of one image, as YOLO's text or VOC's xml
LIST_BYTES = 256 * MIB  # a text file that lists images: two million lines
COCO_BYTES = 2 * GIB  # COCO's own training annotations have 450 MB
XML_DEPTH = 100  # VOC nests four deep
XML_ELEMENTS = 200_000  # an object is ten

# Weights
WEIGHT_BYTES = 64 * GIB  # a file of weights or a group of a checkpoint: 16 billion parameters
WEIGHT_TENSORS = 100_000  # the largest models here have some thousand
PICKLE_BYTES = 64 * MIB  # names and shapes in a .pth, without the numbers

# Models that settings ask for
MODEL_MODULES = 10_000  # layers within layers; the deepest published have some thousand
MODEL_PARAMETERS = 20_000_000_000  # the largest vision transformers have 22 billion
IMAGE_SIZE = 8_192  # side of the images of a model: every token is compared with every other
MODEL_NUMBER = 1_000_000  # in a model's options: a depth of so many would be a list of as many rates
LARGEST_NUMBER = 1e9  # of a setting: far above any that means something, and squares stay finite in float32
