"""How much each thing that `lookup_index.py` finds says about what comes next: weights of a logistic regression.

Owns the weights' order and the fitted numbers. A token's score is the sum of the weights of what speaks for and against
it, and its probability 1 / (1 + exp(-score)): so sources that agree add up, and a guess that most of them contradict
sinks. After Mahoney's mixing of contexts in PAQ ("Adaptive Weighing of Context Models", 2005), with fixed weights:
learning them on the way was measured and brought nothing, because `engine/survival.py` calibrates what comes out.

`share` below is multiplied by the logit of the share that a source gives the token.

| weights | for |
|---|---|
| 7 | the longest context known in the text has 0, 1, ... 6 tokens |
| 6 x 2 | the text has the token after a context of 1, ... 6 tokens: seen there once, or more often |
| 6 | share of it there |
| 6 | not after the longest known context, of 1, ... 6 tokens |
| 3 | the target's favourites after the last two tokens: among them, share, not among them |
| 3 | after the last token alone: the same |
| 4 x 5 x 3 | a table's context of 1, ... 4 tokens, seen once, 2 to 3, to 15, to 127 times, more often: the same |
"""

TEXT_ORDERS = 6
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

WITHOUT_TABLE: tuple[float, ...] = (
    0.000, -2.472, -1.634, -1.307, -0.979, -1.276, -0.580, 0.866, 1.384, 0.964, 1.051,
    1.236, 1.009, 1.024, 1.171, 1.602, 1.417, 1.275, 1.400, 0.436, 0.635, 0.730,
    1.021, 0.419, 1.619, -0.645, -0.806, -1.192, -1.817, -1.270, -3.255, 0.124, 0.164,
    -1.278, -0.020, 0.084, -0.798, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000,
    0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000,
    0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000,
    0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000,
    0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000,
    0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000,
)  # fmt: skip
WITH_TABLE: tuple[float, ...] = (
    -2.364, -2.368, -1.831, -1.380, -0.978, -1.070, -0.575, 0.916, 1.370, 1.080, 0.970,
    1.287, 0.839, 1.075, 0.976, 1.426, 1.226, 1.373, 1.556, 0.325, 0.606, 0.797,
    1.166, 0.553, 1.657, -0.355, -0.649, -1.315, -1.996, -1.690, -3.504, 0.236, 0.111,
    -1.125, 0.117, 0.089, -0.638, 0.432, 0.295, -0.347, 0.477, 0.434, -0.309, 0.937,
    0.455, -0.430, 0.760, 0.499, -0.362, 0.670, 0.331, -0.467, 1.034, 0.350, -0.411,
    1.043, 0.395, -0.475, 1.219, 0.539, -0.283, 1.167, 0.422, -0.308, 1.874, 0.581,
    -0.690, 0.856, 0.190, -0.212, 0.946, 0.288, -0.334, 0.780, 0.240, -0.199, 0.686,
    0.119, -0.179, 0.561, -0.167, 0.116, 0.512, 0.182, -0.358, 0.618, 0.085, -0.064,
    0.978, 0.333, -0.647, 0.941, 0.486, -0.473, 0.000, 0.000, 0.000,
)  # fmt: skip
