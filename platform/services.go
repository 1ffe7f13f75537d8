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
	return Query[ServicesRequest, status.Services]{Name: "services", list: services}
}

func services(ctx context.Context, p *Proxy, r ServicesRequest) (any, error) {
	if r.Service != "" {
		return service(ctx, p, r.Service)
	}
	s, err := p.snapshotFor(ctx, (*track.Tracker).Unsorted)
	if err != nil {
		return nil, err
	}
	track.SortServices(s.Services)
	return status.ListServices(s, r.Filter).In(status.Services{Node: s.Host.Name, Mode: p.mode()}, "services"), nil
}

// service is the answer about one.
func service(ctx context.Context, p *Proxy, of string) (out status.Services, err error) {
	name, err := model.ParseServiceName(of)
	if err != nil {
		return out, err
	}
	s, err := p.snapshotFor(ctx, func(t *track.Tracker) []*track.View { return t.Named(name) })
	if err != nil {
		return out, err
	}
	since, err := p.engine.Since(ctx, name)
	if err != nil {
		return out, err
	}
	out, ok := status.ServiceOf(s, name, since)
	if !ok {
		return out, unknownService(name)
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
