// The built-in names of the 256 control slots that follow the base ranks, one table per model family. The
// merge ranks are shared between the families, so that a wrong table would go unnoticed: ids would decode,
// and mean something else.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace perigee {

enum class ControlFamily { kK2, kK3 };

inline constexpr int32_t kControlSlots = 256;

struct ControlName {
  int32_t slot;  // offset from the first control id
  std::string_view name;
};

inline constexpr ControlName kK3ControlNames[] = {
    {0, "[BOS]"},
    {1, "[EOS]"},
    {2, "<|end_of_msg|>"},
    {3, "<|open|>"},
    {4, "<|close|>"},
    {5, "<|sep|>"},
    {6, "[start_header_id]"},
    {7, "[end_header_id]"},
    {9, "[EOT]"},
    {18, "<|media_begin|>"},
    {19, "<|media_content|>"},
    {20, "<|media_end|>"},
    {21, "<|media_pad|>"},
    {65, "<osagent_mode>"},
    {254, "[UNK]"},
    {255, "[PAD]"},
};

// <think> and </think> (slots 22 and 23) exist only from K2-Thinking onwards, whose tokenizer_config.json
// names them.
inline constexpr ControlName kK2ControlNames[] = {
    {0, "[BOS]"},
    {1, "[EOS]"},
    {2, "<|im_end|>"},
    {3, "<|im_user|>"},
    {4, "<|im_assistant|>"},
    {6, "<|start_header_id|>"},
    {7, "<|end_header_id|>"},
    {9, "[EOT]"},
    {10, "<|im_system|>"},
    {11, "<|tool_calls_section_begin|>"},
    {12, "<|tool_calls_section_end|>"},
    {13, "<|tool_call_begin|>"},
    {14, "<|tool_call_argument_begin|>"},
    {15, "<|tool_call_end|>"},
    {17, "<|im_middle|>"},
    {18, "<|media_begin|>"},
    {19, "<|media_content|>"},
    {20, "<|media_end|>"},
    {21, "<|media_pad|>"},
    {254, "[UNK]"},
    {255, "[PAD]"},
};

inline std::span<const ControlName> control_names(ControlFamily family) {
  if (family == ControlFamily::kK2) return kK2ControlNames;
  return kK3ControlNames;
}

}  // namespace perigee
