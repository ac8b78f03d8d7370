# mypy: ignore-errors
# (Parameters have the types that numba gives them when it compiles.)
"""What local attention's loops are called with, and how they read and write images: a pixel's channels lie side by
side there, while the loops want a channel's pixels so.
"""

from numba import njit as _njit

from ..numba_vectors import floats, get, integers, put, take
from ..sizes import LANES

njit = _njit(error_model="numpy")

# A job is a row of 64-bit numbers. The first counts the threads that have come. `SIZES` is where (batch, height, width,
# parts, heads, channels, k, sets of embeddings) begin, parts being query, key (unless parts is 2) and value; `TENSORS`
# is where the addresses of the tensors begin, all of float32.
THREAD, NUM_THREADS, NUM_TASKS, MASK, BY_IMAGE, HAS_POSITION, SCRATCH, SCRATCH_SIZE, OFFSETS, SIZES, TENSORS = (
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17,
)  # fmt: skip


@njit
def sizes_of(job):
    return (
        get(job, SIZES),
        get(job, SIZES + 1),
        get(job, SIZES + 2),
        get(job, SIZES + 3),
        get(job, SIZES + 4),
        get(job, SIZES + 5),
        get(job, SIZES + 6),
        get(job, SIZES + 7),
    )


@njit
def share_of_thread(job):
    """Scratch, zeros at first, and room for a window's offsets; the first of its tasks, and the one after the last."""
    thread, k = take(job, THREAD), get(job, SIZES + 6)
    scratch = floats(get(job, SCRATCH) + thread * get(job, SCRATCH_SIZE) * 4)
    offsets = integers(get(job, OFFSETS) + thread * k * k * 8)
    num_tasks, num_threads = get(job, NUM_TASKS), get(job, NUM_THREADS)
    return scratch, offsets, num_tasks * thread // num_threads, num_tasks * (thread + 1) // num_threads


@njit
def tensor(job, index):
    return floats(get(job, TENSORS + index))


@njit
def layout(sizes, by_image):
    """Steps between images, rows and pixels of the projection, and a map's channels, rows and pixels; blocks of 16."""
    _, height, width, parts, heads, channels, k, _ = sizes
    stride = LANES if by_image else 1
    blocks = width if by_image else (width + LANES - 1) // LANES
    padded_row = ((width if by_image else blocks * LANES) + k - 1) * stride
    pixel_step = parts * heads * channels
    steps = (
        height * width * pixel_step,
        width * pixel_step,
        pixel_step,
        (height + k - 1) * padded_row,
        padded_row,
        stride,
    )
    return steps, blocks


@njit
def read_lanes(target, at, step, source, place, lane_step, lanes, channels):
    """Up to 16 pixels' channels, a vector of each channel every `step` numbers; zeros in the lanes that are left."""
    for lane in range(LANES):
        for c in range(channels):
            value = get(source, place + lane * lane_step + c) if lane < lanes else 0.0
            put(target, at + c * step + lane, value)


@njit
def write_lanes(target, place, lane_step, source, at, lanes, channels):
    for lane in range(lanes):
        for c in range(channels):
            put(target, place + lane * lane_step + c, get(source, at + c * LANES + lane))


@njit
def map_in(target, at, source, place, steps, lanes, sizes, channels):
    """A head's channels of whole images into the inner part of a padded map; zeros in the lanes that are left."""
    image_step, row_step, pixel_step, channel_size, padded_row, stride = steps
    height, width = sizes[1], sizes[2]
    for lane in range(stride):
        for i in range(height):
            for j in range(width):
                inner = at + i * padded_row + j * stride + lane
                pixel = place + lane * image_step + i * row_step + j * pixel_step
                for c in range(channels):
                    put(target, inner + c * channel_size, get(source, pixel + c) if lane < lanes else 0.0)


@njit
def map_out(target, place, source, at, steps, lanes, sizes, channels):
    """The inner part of a padded map back to where the images' channels lie."""
    image_step, row_step, pixel_step, channel_size, padded_row, stride = steps
    height, width = sizes[1], sizes[2]
    for lane in range(lanes):
        for i in range(height):
            for j in range(width):
                inner = at + i * padded_row + j * stride + lane
                pixel = place + lane * image_step + i * row_step + j * pixel_step
                for c in range(channels):
                    put(target, pixel + c, get(source, inner + c * channel_size))
