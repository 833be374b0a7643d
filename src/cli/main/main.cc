#include <CLI/CLI.hpp>
#include <map>
#include <new>
#include <string>

#include "cli/command.h"
#include "cli/terminal.h"

int main(int argc, char** argv) {
  using namespace plimsoll;
  CLI::App app("Plimsoll tells why a training job ran out of GPU memory.", "plimsoll");
  app.set_version_flag("--version", PLIMSOLL_VERSION);
  app.require_subcommand(1);

  std::map<CLI::App*, Command> commands;
  const auto add = [&](const char* name, const char* what, Command (*register_flags)(CLI::App&)) {
    CLI::App* sub = app.add_subcommand(name, what);
    commands[sub] = register_flags(*sub);
  };
  add("explain", "why it ran out of memory, or what its peak is made of", AddExplain);
  add("report", "one page that shows where the memory went", AddReport);
  add("diff", "what grew between two records, by source line and category", AddDiff);
  add("replay", "the same job under other allocator settings, limits or releases", AddReplay);
  add("tune", "the allocator settings that suit a recorded job best", AddTune);
  add("predict", "how much memory a training step will need, before it is run", AddPredict);
  add("pack", "the least memory that a set of lifetimes needs", AddPack);
  add("gpus", "the catalogue: memory, speed and links of the cards that people own", AddGpus);

  const std::string first = argc > 1 ? argv[1] : "-";
  if (!first.starts_with('-') &&
      app.get_subcommands([&](CLI::App* sub) { return sub->get_name() == first; }).empty()) {
    return Complain(
        {.message = "there is no command '" + first + "'", .hint = "see plimsoll --help"});
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    return Complain({.message = e.what(), .hint = "see plimsoll --help"});
  }
  try {
    return commands.at(app.get_subcommands().front())();
  } catch (const std::bad_alloc&) {
    return Complain({.message = "there is not enough memory for this"});
  }
}
