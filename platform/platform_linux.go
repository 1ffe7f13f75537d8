package platform

import (
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/linux/conntrack"
	"github.com/tandem-proxy/tandem/linux/host"
)

// flowTable is flows.Table with an end.
type flowTable interface {
	flows.Table
	Close() error
}

// openFlows opens the kernel's table of tracked flows.
func openFlows() (flowTable, error) { return conntrack.Open() }

// openSite returns the network namespace of the calling thread.
func openSite() (site, error) { return host.OpenNamespace() }

// examineHost checks what is not about one mode.
func examineHost() []diagnosis.Check { return host.Diagnose() }
