//go:build !linux

package ipvs

import (
	"context"
	"errors"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
)

var errLinux = errors.New("IPVS is part of Linux; on this system it can be planned, not run")

func probe(context.Context) error { return errLinux }

func openBackend(*config.Config) (dataplane.Backend, error) { return nil, errLinux }
