package relay

import "github.com/tandem-proxy/tandem/core/config"

// Mode is the name of the mode whose data plane this package is. How
// connections get to the relays is another matter on each system.
const Mode config.Mode = "userspace"
