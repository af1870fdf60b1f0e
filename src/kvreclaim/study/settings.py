"""Parameters that several experiments of the study share."""

BLOCK_SIZE = 16
BLOCK_SIZES = (4, 8, 16, 32, 64)
POOL_BLOCKS = 512
POOL_TOKENS = POOL_BLOCKS * BLOCK_SIZE
BLOCKS_PER_REQUEST = 8
HALF = 0.5
RATIOS = tuple(tenth / 10 for tenth in range(1, 10))
PUBLISHED_SEEDS = 30
