// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
)

// History asks the proxy that runs here for its last changes.
func History(ctx context.Context, f history.Filter) (d history.Document, err error) {
	query := url.Values{"limit": {strconv.Itoa(f.Limit)}, "failed": {strconv.FormatBool(f.Failed)}}
	if f.Service != (model.ServiceName{}) {
		query["namespace"], query["name"] = []string{f.Service.Namespace}, []string{f.Service.Name}
	}
	err = post(ctx, "/history?"+query.Encode(), &d)
	return d, err
}

// historyRoute answers History. It does not use the engine's goroutine.
func (p *Proxy) historyRoute() route {
	return route{"POST /history", func(w http.ResponseWriter, r *http.Request) {
		f, err := historyFilter(r.URL.Query())
		if err != nil {
			reply(w, nil, err)
			return
		}
		reply(w, p.engine.History().Find(f), nil)
	}}
}

func historyFilter(query url.Values) (f history.Filter, err error) {
	f.Service = model.ServiceName{Namespace: query.Get("namespace"), Name: query.Get("name")}
	if f.Limit, err = strconv.Atoi(query.Get("limit")); err != nil || f.Limit < 0 {
		return f, fmt.Errorf("limit %.40q is not a number of changes", query.Get("limit"))
	}
	if f.Failed, err = strconv.ParseBool(query.Get("failed")); err != nil {
		return f, fmt.Errorf("failed %.40q is neither true nor false", query.Get("failed"))
	}
	return f, nil
}
