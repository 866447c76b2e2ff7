// What a K2 answer may be: thinking, text, and a section of calls with JSON arguments.
#pragma once

#include "text/chat.h"

namespace perigee {

// `thinks`: the vocabulary has thinking tokens, and the prompt ends inside the thinking.
void k2_answer_grammar(Grammar& grammar, const Vocabulary& vocabulary, const AnswerShape& shape, bool thinks);

}  // namespace perigee
