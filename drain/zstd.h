/* The few functions of zstd.c that the drain calls.
 *
 * zstd.c is Zstandard's own code (see zstd.LICENSE); this header is callsight's. */
#ifndef CALLSIGHT_ZSTD_H
#define CALLSIGHT_ZSTD_H

#include <stddef.h>

typedef struct ZSTD_CCtx_s ZSTD_CCtx;

ZSTD_CCtx *ZSTD_createCCtx(void);
size_t ZSTD_freeCCtx(ZSTD_CCtx *context);
size_t ZSTD_compressBound(size_t raw_bytes);
size_t ZSTD_compressCCtx(ZSTD_CCtx *context, void *out, size_t out_bytes, const void *raw,
                         size_t raw_bytes, int level);
unsigned ZSTD_isError(size_t result);
const char *ZSTD_getErrorName(size_t result);
const char *ZSTD_versionString(void);

#endif
