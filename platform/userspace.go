package platform

import (
	"runtime"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/relay/direct"
	linux "github.com/tandem-proxy/tandem/linux/userspace"
	windows "github.com/tandem-proxy/tandem/windows/userspace"
)

// userspaceMode is relays, and the ways of this system to bring connections to
// them.
func userspaceMode() dataplane.Mode {
	ways := []dataplane.Mode{linux.Mode(), windows.Mode(), direct.LoopbackMode()}
	here := slices.DeleteFunc(ways, func(m dataplane.Mode) bool { return m.System != "" && m.System != runtime.GOOS })
	return dataplane.FirstOf(relay.Mode, here...)
}
