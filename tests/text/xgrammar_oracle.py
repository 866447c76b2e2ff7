"""xgrammar's C++ matcher without its Python package, which imports torch and transformers for what is not tested here."""

import functools
import importlib
import importlib.util
import json
import sys
import types


@functools.cache
def bindings():
    spec = importlib.util.find_spec("xgrammar")
    package = types.ModuleType("xgrammar")
    package.__spec__ = spec
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["xgrammar"] = package
    importlib.import_module("xgrammar.load_binding")
    return importlib.import_module("xgrammar.base")._core


class XGrammar:
    """Whether a whole text has a form."""

    def __init__(self):
        self.core = bindings()
        no_tokens = self.core.TokenizerInfo([], 0, None, None, False)
        self.compiler = self.core.GrammarCompiler(no_tokens, 1, False, -1, False)

    def compile(self, kind, source):
        if kind == "json":
            grammar = self.core.Grammar.from_json_schema(json.dumps(source), True, None, None, True, None, False, False)
        elif kind == "regex":
            grammar = self.core.Grammar.from_regex(source, False)
        else:
            grammar = self.core.Grammar.from_ebnf(source, "root")
        return self.compiler.compile_grammar_ebnf(grammar)

    def takes(self, compiled, text):
        matcher = self.core.GrammarMatcher(compiled, None, True, -1, None)
        return bool(matcher.accept_string(text, False) and matcher.is_completed())
