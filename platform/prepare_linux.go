package platform

import (
	"log/slog"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/linux/host"
)

// prepare sets the kernel's tracking of connections, and how willing it is to
// kill this process.
func prepare(c *config.Config, log *slog.Logger) []error { return host.Prepare("/", c, log) }
