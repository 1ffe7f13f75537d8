//go:build !linux

package platform

import "log/slog"

// limitMemory does nothing where there are no cgroups.
func limitMemory(*slog.Logger) {}
