package platform

import (
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/linux/conntrack"
)

// flowTable is flows.Table with an end.
type flowTable interface {
	flows.Table
	Close() error
}

// openFlows opens the kernel's table of tracked flows.
func openFlows() (flowTable, error) { return conntrack.Open() }
