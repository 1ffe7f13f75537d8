// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"fmt"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/snapshot"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/track"
)

// ServicesRequest is what tandem services asks.
type ServicesRequest struct {
	Service string        `json:"service,omitempty"` // NAMESPACE/NAME; empty for all, without their endpoints
	Filter  status.Filter `json:"filter,omitzero"`   // of all
}

// Services is the query of tandem services.
func Services() Query[ServicesRequest, status.Services] {
	return Query[ServicesRequest, status.Services]{Name: "services", answer: services}
}

func services(ctx context.Context, p *Proxy, r ServicesRequest) (out status.Services, err error) {
	pick := (*track.Tracker).Unsorted
	var name model.ServiceName
	if r.Service != "" {
		if name, err = model.ParseServiceName(r.Service); err != nil {
			return out, err
		}
		pick = func(t *track.Tracker) []*track.View { return t.Named(name) }
	}
	s, err := p.snapshotFor(ctx, pick)
	if err != nil {
		return out, err
	}
	if r.Service == "" {
		track.SortServices(s.Services)
		out = status.ServicesOf(s, r.Filter)
	} else {
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

// ServicesOf answers the question about a snapshot: what its inputs mean, and the state that each
// Service was in.
func ServicesOf(f *snapshot.File, r ServicesRequest) (out status.Services, err error) {
	replayed, _, err := Replay(f)
	if err != nil {
		return out, err
	}
	s := &engine.Snapshot{Host: replayed.Host, Services: replayed.Services, Suspects: f.Suspects, Backend: dataplane.Health{Gaps: replayed.Plan.Gaps}}
	if r.Service == "" {
		out = status.ServicesOf(s, status.Filter{Namespace: r.Filter.Namespace, Name: r.Filter.Name})
	} else {
		name, err := model.ParseServiceName(r.Service)
		if err != nil {
			return out, err
		}
		var ok bool
		if out, ok = status.ServiceOf(s, name, nil); !ok {
			return out, unknownService(name)
		}
	}
	out.Recall(f.Status.Services)
	out.Services = slices.DeleteFunc(out.Services, func(d status.ServiceDetail) bool { return !r.Filter.Match(d.Name, d.State) })
	out.Node, out.Mode = s.Host.Name, string(f.Mode)
	return out, nil
}

func unknownService(name model.ServiceName) error {
	return fmt.Errorf("no Service %s: none of this name was received, or it is labelled for another proxy", name)
}
