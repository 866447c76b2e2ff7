// --override-config: replaces scalar fields of a config.json before it is read.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "model/config.h"

namespace perigee {

// A key is found in text_config, at the top level, or in linear_attn_config, dsa_config and vision_config, in
// this order; "linear_attn_config.num_heads" names the object. A field that is in none of them is added to
// the text config when it is one that the reader knows, and is an error otherwise.
void apply_config_overrides(boost::json::object& root, const ConfigOverrides& overrides);

}  // namespace perigee
