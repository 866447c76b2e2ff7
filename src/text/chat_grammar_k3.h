// What a K3 answer may be: the elements that the model writes, with text, JSON and calls in their places.
#pragma once

#include "text/chat.h"

namespace perigee {

void k3_answer_grammar(Grammar& grammar, const Vocabulary& vocabulary, const AnswerShape& shape);

}  // namespace perigee
