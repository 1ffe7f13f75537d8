package platform

import (
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/linux/conntrack"
)

// preference is the order in which auto tries the modes.
func preference() []config.Mode { return []config.Mode{config.NFTables} }

// flowTable is flows.Table with an end.
type flowTable interface {
	flows.Table
	Close() error
}

// openFlows opens the kernel's table of tracked flows.
func openFlows() (flowTable, error) { return conntrack.Open() }
