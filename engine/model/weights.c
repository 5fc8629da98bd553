#include "engine/model/weights.h"
#include "engine/model/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"

enum {
    INDEX_BYTES_MAX = 64 << 20
};

struct shard {
    char *name;
    struct ocr_safetensors file;
};

struct ocr_weights {
    json_t *index;     /* NULL: one file */
    const json_t *map; /* its weight_map: tensor -> name of file */
    struct shard shard[OCR_MAPPINGS_MAX];
    size_t count;
};

static struct shard *shard_find(const struct ocr_weights *w, const char *name)
{
    for (size_t i = 0; i < w->count; i++)
        if (!strcmp(w->shard[i].name, name))
            return (struct shard *)(uintptr_t)&w->shard[i];
    return NULL;
}

static int shard_open(struct ocr_weights *w, int dir, const char *name,
                      struct ocr_err *err)
{
    struct shard *s = &w->shard[w->count];
    int rc;

    if (w->count == OCR_MAPPINGS_MAX)
        return ocr_err_set(err, -ENFILE, "%s names more than %d files", INDEX,
                           OCR_MAPPINGS_MAX);
    s->name = strdup(name);
    if (!s->name)
        return ocr_err_set(err, -ENOMEM, "out of memory");
    rc = ocr_safetensors_open(&s->file, dir, name, err);
    if (rc) {
        free(s->name);
        return rc;
    }
    w->count++;
    return 0;
}

/* A file of this folder, and nothing that leads elsewhere or back here. */
static bool good_name(const char *name)
{
    static const char ending[] = ".safetensors";
    const size_t len = name ? strlen(name) : 0;

    return len > strlen(ending) && !strchr(name, '/') && name[0] != '.' &&
           !strcmp(name + len - strlen(ending), ending);
}

static int check_entry(struct ocr_weights *w, int dir, const char *tensor,
                       const char *name, struct ocr_err *err)
{
    struct shard *s;
    int rc;

    if (!good_name(name))
        return ocr_err_set(err, -EINVAL,
                           "%s: tensor %.120s: \"%.80s\" is not the name of a "
                           "safetensors file of this folder",
                           INDEX, tensor, name ? name : "");
    s = shard_find(w, name);
    if (!s) {
        rc = shard_open(w, dir, name, err);
        if (rc == -ENOENT) {
            ocr_err_clear(err);
            ocr_err_set(err, rc,
                        "%s: tensor %.120s should be in %.80s: No such file",
                        INDEX, tensor, name);
        }
        if (rc)
            return rc;
        s = &w->shard[w->count - 1];
    }
    if (!ocr_safetensors_find(&s->file, tensor))
        return ocr_err_set(err, -EINVAL,
                           "%s: tensor %.120s should be in %.80s, but is not",
                           INDEX, tensor, name);
    return 0;
}

static int index_open(struct ocr_weights *w, int dir, struct ocr_err *err)
{
    struct ocr_buf text;
    const char *tensor;
    json_t *name;
    int rc;

    ocr_buf_init(&text, INDEX_BYTES_MAX);
    rc = ocr_file_read(&text, dir, INDEX, err);
    if (!rc)
        w->index = ocr_json_parse(text.data, text.len, INDEX, err);
    ocr_buf_release(&text);
    if (rc == -ENOENT)
        return rc;
    if (!w->index)
        return rc ? rc : -EINVAL;
    w->map = json_object_get(w->index, "weight_map");
    if (!json_is_object(w->map))
        return ocr_err_set(err, -EINVAL, "%s: no weight_map", INDEX);
    json_object_foreach((json_t *)(uintptr_t)w->map, tensor, name)
    {
        rc = check_entry(w, dir, tensor, json_string_value(name), err);
        if (rc)
            return rc;
    }
    return 0;
}

int ocr_weights_open(struct ocr_weights **out, int dir, struct ocr_err *err)
{
    struct ocr_weights *w = calloc(1, sizeof *w);
    struct ocr_err why = OCR_ERR_INIT;
    int rc;

    if (!w)
        return ocr_err_set(err, -ENOMEM, "out of memory");
    rc = shard_open(w, dir, SINGLE, &why);
    if (rc == -ENOENT) {
        ocr_err_clear(&why);
        rc = index_open(w, dir, &why);
    }
    if (rc == -ENOENT && !w->index)
        ocr_err_set(err, rc, "no weights: neither %s nor %s", SINGLE, INDEX);
    if (rc) {
        ocr_err_set(err, rc, "%s", why.text);
        ocr_weights_close(w);
        return rc;
    }
    *out = w;
    return 0;
}

struct ocr_found ocr_weights_find(const struct ocr_weights *w, const char *name)
{
    const char *file = json_string_value(json_object_get(w->map, name));
    const struct shard *s = file ? shard_find(w, file) : w->shard;
    struct ocr_found found = {0};

    if (w->index && !file)
        return found;
    found.file = s->name;
    found.tensor = ocr_safetensors_find(&s->file, name);
    if (found.tensor)
        found.data = ocr_safetensors_data(&s->file, found.tensor);
    return found;
}

const char *ocr_weights_file(const struct ocr_weights *w)
{
    return w->index ? INDEX : SINGLE;
}

int ocr_weights_check(const struct ocr_weights *w, struct ocr_err *err)
{
    for (size_t i = 0; i < w->count; i++) {
        const struct shard *s = &w->shard[i];
        const int rc = ocr_mapping_check(&s->file.mapping, s->name, err);

        if (rc)
            return rc;
    }
    return 0;
}

void ocr_weights_close(struct ocr_weights *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->count; i++) {
        ocr_safetensors_release(&w->shard[i].file);
        free(w->shard[i].name);
    }
    json_decref(w->index);
    free(w);
}
