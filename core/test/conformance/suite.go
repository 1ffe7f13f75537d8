// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"flag"
	"fmt"
	"maps"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Flags of the test binary, as in go test -p 1 ./linux/... -update.
var (
	updating   = flag.Bool("update", false, "write goldens into the scenarios instead of comparing them")
	worldCount = flag.Int("worlds", 100, "how many random worlds each backend is compared with the reference in")
	worldFrom  = flag.Uint64("from", 0, "the seed of the first of them")
)

// WantedWorlds returns the seed of the first random world that the flags ask for, and how
// many there shall be; without the flag as many as usual.
func WantedWorlds(usual int) (first uint64, n int) {
	n = usual
	flag.Visit(func(f *flag.Flag) {
		if f.Name == "worlds" {
			n = *worldCount
		}
	})
	return *worldFrom, n
}

// Suite is a data plane under test.
type Suite[K comparable, V any] struct {
	Mode     string // as in want/MODE
	Compiler dataplane.Compiler[K, V]

	// Sim returns what a kernel with these objects does with a packet. It may use
	// only the objects and what the kernel knows of the host: its addresses and
	// interfaces.
	Sim func(objects map[K]V, host *model.Host) func(oracle.Packet) oracle.Outcome

	// Excuse returns the reason if an outcome differs only by a limitation of the
	// whole mode, independent of the Service. It must be as narrow as possible;
	// limitations for single ports are Gaps. Nil is none.
	Excuse func(host *model.Host, p oracle.Packet, want, got oracle.Outcome) string

	// Golden renders the objects of ports as text, in a fixed order. Nil is no
	// goldens.
	Golden func(objects map[K]V) string

	// Dir holds the scenarios; empty is ci/scenarios of this module.
	Dir string
	// Worlds is how many random worlds are tried; 0 uses the flag's value (100 by default).
	Worlds int
}

// tally counts the tested scenarios and packets.
type tally struct {
	worlds, rows int
	packets      int            // those of rows and of probes
	recorded     int            // packets traced by recorded differences
	excused      map[string]int // packets that differ, by the detail of the gap
}

func (y *tally) excuse(detail string, packets int) {
	if y.excused == nil {
		y.excused = map[string]int{}
	}
	y.excused[detail] += packets
}

// String returns the numbers.
func (y *tally) String() string {
	s := fmt.Sprintf("%d worlds, %d rows, %d packets judged, %d by recorded differences", y.worlds, y.rows, y.packets, y.recorded)
	for _, detail := range slices.Sorted(maps.Keys(y.excused)) {
		s += fmt.Sprintf(", %d excused by a gap (%s)", y.excused[detail], detail)
	}
	return s
}
