#pragma once

#include <span>
#include <string>
#include <string_view>

#include "recall/sweep_table.h"

namespace lodestone {

// Sweeps as one picture: an SVG 1.1 document with a panel for each table (its label, then the grid
// that its text table shows), a title and a legend. A cell is coloured by the share of its needles
// that was found, from blue (all) over white to vermilion (none): a pair that the colour-blind can
// tell apart. Cells with errors are grey. What is not found is also written into its cell.
//
// Each grid cell, asked or not, is one <g class="cell"> with data-panel, data-row, data-column,
// data-asked, data-found and data-failed, and a <title> (what a browser shows under the pointer)
// with the values and replies. Needs no font, script or style from elsewhere. Any text is escaped;
// what XML does not allow becomes U+FFFD.
std::string DrawHeatMap(std::string_view title, std::span<const SweepTable> panels);

}  // namespace lodestone
