//go:build !linux

package platform

import (
	"log/slog"

	"github.com/tandem-proxy/tandem/core/config"
)

// prepare has nothing to do where Linux' connection tracking is not.
func prepare(*config.Config, *slog.Logger) []error { return nil }
