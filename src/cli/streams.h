// The standard streams of the process, and errors as one line on stderr.
#pragma once

#include <string_view>

namespace perigee::cli {

// Gives every standard stream that is closed a file that is at its end (stdin), cannot be written (stdout) or
// swallows what it gets (stderr): else the next file opened would take its number, and a chat would read its
// questions from the weights.
void open_closed_streams();

// Throws Error{kBadFile} when what was printed could not be written: a full disk must not pass for success.
void flush_stdout();

// `perigee: MESSAGE` on one line of stderr. Control characters and bytes that are not UTF-8, which file names
// may hold, are shown as \xNN.
void print_error(std::string_view message);

}  // namespace perigee::cli
