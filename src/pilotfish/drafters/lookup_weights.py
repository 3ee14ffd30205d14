"""How much each thing that `lookup_index.py` finds says about what comes next: weights of a logistic regression.

Owns the weights' order and the fitted numbers. A token's score is the sum of the weights of what speaks for and against
it, and its probability 1 / (1 + exp(-score)): so sources that agree add up, and a guess that most of them contradict
sinks. After Mahoney's mixing of contexts in PAQ ("Adaptive Weighing of Context Models", 2005), with fixed weights:
learning them on the way was measured and brought nothing. `engine/survival.py` calibrates what comes out.

`benchmarks/fit_lookup.py` fits them. These are of 140 conversations of the demo model at temperatures 0, 0.7 and 1,
with a table of 760 others; what they weigh is shares and counts, so that another model need not have its own.

`share` below is multiplied by the logit of the share that a source gives the token.

| weights | for |
|---|---|
| 8 | the longest context known in the text is none, or the first, ... last of `TEXT_LENGTHS` |
| 7 x 2 | the text has the token after a context of such a length: seen there once, or more often |
| 7 | share of it there |
| 7 | not after the longest known context, of such a length |
| 3 | the target's favourites after the last two tokens: among them, share, not among them |
| 3 | after the last token alone: the same |
| 4 x 5 x 3 | a table's context of 1, ... 4 tokens, seen once, 2 to 3, to 15, to 127 times, more often: the same |
"""

TEXT_LENGTHS = (1, 2, 3, 4, 6, 9, 14)
"""Of the contexts that the text is counted by; long ones tell what is copied from what is only like it."""
TEXT_ORDERS = len(TEXT_LENGTHS)
TABLE_ORDERS = 4
SEEN_CLASSES = 5
BIAS = 0
LISTED = BIAS + TEXT_ORDERS + 1
SHARE = LISTED + 2 * TEXT_ORDERS
ESCAPE = SHARE + TEXT_ORDERS
PAIR = ESCAPE + TEXT_ORDERS
SINGLE = PAIR + 3
TABLE = SINGLE + 3
COUNT = TABLE + 3 * TABLE_ORDERS * SEEN_CLASSES
NOISE_COUNT = 5

WITHOUT_TABLE: tuple[float, ...] = (
    0.000, -2.605, -2.165, -1.568, -1.322, -1.148, -1.181, -0.875, 0.900, 1.453, 1.366,
    1.364, 1.226, 1.127, 1.330, 1.161, 1.539, 1.591, 1.732, 1.214, 1.960, 1.107,
    0.460, 0.615, 0.801, 0.914, 1.262, 1.716, 2.228, -0.629, -0.434, -1.184, -1.658,
    -2.351, -2.545, -3.943, 0.231, 0.196, -1.204, 0.038, 0.075, -0.646, 0.000, 0.000,
    0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000,
    0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000,
    0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000,
    0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000,
    0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000,
    0.000, 0.000, 0.000,
)  # fmt: skip
WITH_TABLE: tuple[float, ...] = (
    -2.521, -2.597, -2.114, -1.449, -1.164, -1.058, -1.142, -0.967, 0.934, 1.315, 1.159,
    1.330, 1.004, 0.785, 1.153, 0.931, 1.469, 1.544, 1.722, 1.140, 1.984, 1.257,
    0.345, 0.506, 0.827, 0.933, 1.202, 1.820, 2.396, -0.246, -0.617, -1.534, -2.058,
    -2.715, -2.917, -4.208, 0.322, 0.137, -1.023, 0.069, 0.071, -0.499, 0.496, 0.390,
    0.019, 0.910, 0.481, -0.058, 0.991, 0.498, -0.160, 1.024, 0.470, -0.145, 0.808,
    0.317, -0.220, 1.072, 0.383, -0.498, 1.102, 0.417, -0.554, 1.146, 0.477, -0.472,
    1.097, 0.423, -0.496, 1.220, 0.479, -0.299, 0.879, 0.174, -0.375, 0.980, 0.308,
    -0.415, 1.058, 0.340, -0.410, 0.910, 0.316, -0.222, 0.465, -0.019, -0.056, 0.715,
    0.114, -0.320, 0.532, 0.160, -0.309, 0.981, 0.422, -0.187, 1.230, 0.366, -0.508,
    -0.177, 0.223, -0.314,
)  # fmt: skip

# Above temperature 0, where the target's noise g at a position is known beforehand. It chooses the highest
# log(probability) + temperature * g; our estimate q of the probability is less sure, so the candidate's chance is in
# proportion to exp(w0 * (log(q) + w1 * temperature * g)), and that of a token that nothing named, of probability r, to
# exp(w2 + w3 * temperature + w4 * log(r)). Fitted at temperatures 0.3 to 1.3 together.
NOISE_WITHOUT_TABLE = (1.054, 0.621, -1.329, 1.887, 0.711)
NOISE_WITH_TABLE = (1.248, 0.672, -4.254, 3.803, 0.557)
