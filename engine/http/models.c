/* GET /models: which models a server has, and which of them reads. */
#include "engine/http/http_i.h"

#include "engine/base/log.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* True if `name` has "ocr" in it, in any case. */
static bool reads(const char *name)
{
    for (; *name; name++)
        if (!strncasecmp(name, "ocr", 3))
            return true;
    return false;
}

/* A name that can stand in a fingerprint and in a line of a log. */
static bool sound(const char *name)
{
    const size_t len = strlen(name);

    for (size_t i = 0; i < len; i++)
        if (iscntrl((unsigned char)name[i]))
            return false;
    return len > 0 && len < NAME_MAX_LEN;
}

static void name_some(const json_t *list, char *out, size_t size)
{
    const json_t *entry;
    size_t used = 0, i;

    *out = '\0';
    json_array_foreach(list, i, entry)
    {
        const char *id = json_string_value(json_object_get(entry, "id"));

        if (!id || used + 2 >= size)
            continue;
        if (used)
            used += (size_t)snprintf(out + used, size - used, ", ");
        used += ocr_log_escape(out + used, size - used, id, strlen(id));
    }
}

/* The only one that `accept` likes, NULL if there are none or several. */
static const char *only(const json_t *list, bool (*accept)(const char *name))
{
    const char *found = NULL;
    const json_t *entry;
    size_t i, count = 0;

    json_array_foreach(list, i, entry)
    {
        const char *id = json_string_value(json_object_get(entry, "id"));

        if (id && sound(id) && accept(id)) {
            found = id;
            count++;
        }
    }
    return count == 1 ? found : NULL;
}

static bool is_served(const json_t *list, const char *name)
{
    const json_t *entry;
    size_t i;

    json_array_foreach(list, i, entry)
    {
        const char *id = json_string_value(json_object_get(entry, "id"));

        if (id && !strcmp(id, name))
            return true;
    }
    return false;
}

static int choose(const json_t *list, const char *wanted,
                  char out[NAME_MAX_LEN], struct ocr_err *err)
{
    const char *found = NULL;
    char names[160];

    if (*wanted)
        found = is_served(list, wanted) ? wanted : NULL;
    else if (!(found = only(list, sound)))
        found = only(list, reads);
    if (found) {
        snprintf(out, NAME_MAX_LEN, "%s", found);
        return 0;
    }
    name_some(list, names, sizeof names);
    if (!*names)
        return ocr_err_set(err, -ENOENT, "it serves no model");
    if (*wanted)
        return ocr_err_set(err, -ENOENT, "it does not serve %s, but %s", wanted,
                           names);
    return ocr_err_set(err, -ENOENT,
                       "it serves several models, name one with model=: %s",
                       names);
}

int http_models_choose(const char *body, size_t len, const char *wanted,
                       char out[NAME_MAX_LEN], struct ocr_err *err)
{
    json_t *object = json_loadb(body, len, 0, NULL);
    const json_t *list = json_object_get(object, "data");
    int rc;

    if (json_is_array(list))
        rc = choose(list, wanted, out, err);
    else
        rc = ocr_err_set(err, -EPROTO,
                         "what it answers to GET /models is no list of models: "
                         "is the address right (does it end with /v1)?");
    json_decref(object);
    return rc;
}
