// Just enough JSON for a plugin: values are spans of the text that they stand in, so that nothing is copied to look
// at it, and a value can be written to another document as it is. Nothing is freed: every call of a plugin runs in
// an instance of its own.
//
// The reader trusts its text to be JSON, as the contract says of all that the host sends.
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// One value: an object, an array, a string with its quotes, a number, true, false or null. Without text: none.
typedef struct {
  const char *text;
  size_t length;
} json;

// The whole document.
json json_of(const void *text, size_t length);

// The value at a path of field names, such as "/metadata/name"; none when it is missing or null.
json json_at(json value, const char *path);

// Whether there is a value.
bool json_is_there(json value);

// Whether this is the string `text`. Escapes are compared as they are written: for plain names and words.
bool json_is(json value, const char *text);

// Whether two values are written alike.
bool json_same(json a, json b);

// The whole number, or false when it is none or not within `least` and `most`.
bool json_integer(json value, int64_t least, int64_t most, int64_t *number);

// A loop over every item of an array, in order; none without an array.
#define json_each(item, array) \
  for (json rest = json_items(array), item; json_next(&rest, &item);)

// For `json_each`.
json json_items(json array);
bool json_next(json *rest, json *item);

// A string without its quotes, its escapes as they are written: to be written into another string.
json json_inner(json string);

// A text that grows.
typedef struct {
  char *text;
  size_t length, space;
} text;

// Appends in the manner of printf: %s, %d and %%, and %J for a json.
void text_add(text *to, const char *format, ...);

#endif
