// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package nftables

import (
	"context"
	"errors"
	"log/slog"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
)

var errLinux = errors.New("nftables is part of Linux; on this system it can be planned, not run")

func probe(context.Context) error { return errLinux }

func openBackend(context.Context, *config.Config, *slog.Logger) (dataplane.Backend, error) {
	return nil, errLinux
}

func kubeProxy(context.Context) (dataplane.Leftovers, error) { return dataplane.Leftovers{}, errLinux }
