package platform

import (
	"runtime"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/userspace"
)

// userspaceMode is relays, and the ways of this system to bring connections to
// them.
func userspaceMode() dataplane.Mode {
	ways := []dataplane.Mode{userspace.Mode()}
	here := slices.DeleteFunc(ways, func(m dataplane.Mode) bool { return m.System != "" && m.System != runtime.GOOS })
	return dataplane.Either(relay.Mode, here...)
}
