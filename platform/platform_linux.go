package platform

import (
	"log/slog"

	"github.com/tandem-proxy/tandem/core/config"
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
func openSite() (site, error) { return host.Here() }

// Prepare sets what the configuration asks of the node besides rules: sysctls of
// connection tracking, and the proxy's own place in the kernel's list of victims.
// It returns and logs what could not be set; Services are served without.
func Prepare(c *config.Config, log *slog.Logger) (failed []error) { return host.Prepare("/", c, log) }

// examineHost checks what is not about one mode.
func examineHost() []diagnosis.Check { return host.Examine() }
