// Schedules that always run: the first one, and each that has found a bug that is mended, with what it was. A change to the
// simulation makes another schedule of a seed; it stays as good as any.
#pragma once

#include <array>
#include <cstdint>

namespace muster::sim {

inline constexpr std::array<uint64_t, 20> kPinned = {
    1,           // the first
    5005029886,  // a node that came back with a dead supervisor while the links were tested ended the test twice
    5007003559,  // all musterds were restarted at once, one node was cut off before its own was heard: called silent too soon
    5016008442,  // the same, on a host that had joined
    7016026666,  // a lost node that the others had ended without could not read that they had
    100000505,  // a node that knew of the next term did not obey the end, which was not told again in that term
    700136262,  // a lost node that was back stopped what ran there while the links were tested: nobody noted it
    600063977,  // a musterd went between its first beat to a successor and its link: called silent while its members ran
    800148901,  // a coordinator that was cut off had begun another generation on its own node: nobody stopped that
    800037723,  // a coordinator that had stood still told the end without its record, and another had the record
    700086195,  // the same of a coordinator whose quorum was the word of a store that did not answer any more
    200030582,  // the term was raised while the gang joined: a node that had not joined yet was called silent, and lost
    600003148,       // the same
    20261127104009,  // who took over after SIGTERM told nodes to start whose part had waited for another role
    800146299,  // the simulation's: a start was looked at when it was said again, and a lost node was back by then
    610001775,       // the same
    950049945,       // members were told of a commit that the generation before had made
    20261127081608,  // the same
    20602,  // a node was cut off with the raise of a term, and votes carried it: a bound of one lease would call it silent too soon
    600079316,  // who was asked to coordinate called its own node silent: that agent still dialled dead hosts
};

}  // namespace muster::sim
