package platform

import (
	"log/slog"

	"github.com/tandem-proxy/tandem/core/config"
)

// Prepare sets what a configuration asks of the system besides Services, and
// what stays when the process ends: it is all that needs more rights than
// CAP_NET_ADMIN, and what `--init-only` does. What cannot be set is logged with
// what to do: in a container it often is right already.
func Prepare(c *config.Config, log *slog.Logger) {
	for _, err := range prepare(c, log) {
		log.Warn("the system is not set as configured", "error", err)
	}
}
