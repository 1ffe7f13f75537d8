//go:build !linux

package platform

import "github.com/tandem-proxy/tandem/core/config"

// prepare has nothing to do where Linux' connection tracking is not.
func prepare(*config.Config) []error { return nil }
