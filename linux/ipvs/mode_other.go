// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package ipvs

import (
	"context"
	"errors"
	"log/slog"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
)

var errLinux = errors.New("IPVS needs Linux; on this system only plan works")

func probe(context.Context) error { return errLinux }

func openBackend(context.Context, *config.Config, *slog.Logger) (dataplane.Backend, error) {
	return nil, errLinux
}

func openLeft(context.Context, *config.Config, *slog.Logger) (dataplane.Backend, error) {
	return nil, errLinux
}
