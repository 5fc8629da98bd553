/* libcuda.so.1 as far as ocrfs asks it: a driver with as many cards as
 * $OCRFS_PLAYED_CARDS says, 2 without. */
#include <stdlib.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int *out);
int cuDeviceGetCount(int *out);

int cuInit(unsigned flags)
{
    return (int)flags;
}

int cuDriverGetVersion(int *out)
{
    *out = 13000;
    return 0;
}

int cuDeviceGetCount(int *out)
{
    const char *cards = getenv("OCRFS_PLAYED_CARDS");

    *out = cards ? atoi(cards) : 2;
    return 0;
}
