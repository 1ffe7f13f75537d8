// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

// Proxy is the proxy under test. It must work in the namespace of the lab's
// node. Its methods are called one after the other.
type Proxy interface {
	// Start starts to serve the manifests in dir. It need not wait.
	Start(ctx context.Context, dir string, host config.Config) error

	// Changed waits until what dir holds now has been programmed. It is called
	// after Start and after each change of dir.
	Changed(ctx context.Context) error

	// Stop ends the proxy. What it has programmed may stay.
	Stop() error
}

// Gapped is a Proxy with gaps.
type Gapped interface {
	// Gap reports whether the proxy has declared that it does not support a
	// row.
	Gap(row conformance.Packet) (model.Gap, bool)
}

// Hashing is a Proxy that may choose by the client's address.
type Hashing interface {
	// OneForAClient reports whether all connections of a row's client reach one of its
	// endpoints, though no session affinity asks for it.
	OneForAClient(row conformance.Packet) bool
}

// Unfit is returned by Start and Changed of a Proxy whose source cannot represent the
// content of the folder. The rest of the scenario is skipped.
type Unfit struct{ Why error }

func (u *Unfit) Error() string { return u.Why.Error() }

func (u *Unfit) Unwrap() error { return u.Why }
