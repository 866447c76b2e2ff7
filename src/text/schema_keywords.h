// Keywords of JSON Schema that the grammars cannot keep: refused, or taken away by relaxed_schema.
#pragma once

namespace perigee {

// Each restricts the value.
constexpr const char* kUnenforcedKeywords[] = {"oneOf",
                                               "not",
                                               "if",
                                               "then",
                                               "else",
                                               "dependentRequired",
                                               "dependentSchemas",
                                               "patternProperties",
                                               "propertyNames",
                                               "unevaluatedProperties",
                                               "unevaluatedItems",
                                               "contains",
                                               "uniqueItems",
                                               "multipleOf",
                                               "minimum",
                                               "maximum",
                                               "exclusiveMinimum",
                                               "exclusiveMaximum",
                                               "minProperties",
                                               "maxProperties",
                                               "prefixItems",
                                               "additionalItems",
                                               "$dynamicRef"};

// The first of these that stands in a schema says what the value is; those after it are not combined with it.
// const and enum are filtered by type.
constexpr const char* kCombinedKeywords[] = {"$ref",       "const",     "enum",
                                             "anyOf",      "allOf",     "type",
                                             "properties", "required",  "additionalProperties",
                                             "items",      "minItems",  "maxItems",
                                             "minLength",  "maxLength", "pattern"};

}  // namespace perigee
