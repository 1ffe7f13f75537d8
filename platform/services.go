// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"fmt"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/status"
)

// ServicesRequest is what tandem services asks.
type ServicesRequest struct {
	Service string `json:"service,omitempty"` // NAMESPACE/NAME; empty for all, without their endpoints
}

// Services is the query of tandem services.
func Services() Query[ServicesRequest, status.Services] {
	return Query[ServicesRequest, status.Services]{Name: "services", answer: services}
}

func services(ctx context.Context, p *Proxy, r ServicesRequest) (out status.Services, err error) {
	s, err := p.snapshotFor(ctx)
	if err != nil {
		return out, err
	}
	if r.Service == "" {
		out = status.ServicesOf(s)
	} else {
		name, err := model.ParseServiceName(r.Service)
		if err != nil {
			return out, err
		}
		since, err := p.engine.Since(ctx, name)
		if err != nil {
			return out, err
		}
		var ok bool
		if out, ok = status.ServiceOf(s, name, since); !ok {
			return out, unknownService(name)
		}
	}
	out.Node, out.Mode = s.Host.Name, p.mode()
	return out, nil
}

func unknownService(name model.ServiceName) error {
	return fmt.Errorf("no Service %s: tandem has received none of this name, or it is for another proxy", name)
}
