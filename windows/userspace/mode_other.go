//go:build !windows

package userspace

import (
	"context"
	"errors"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
)

var errWindows = errors.New("addresses on an adapter are for Windows; on this system they can be planned, not made")

func probe(context.Context) error { return errWindows }

func open(*config.Config) (dataplane.Backend, error) { return nil, errWindows }
