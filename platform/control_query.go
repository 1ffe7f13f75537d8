// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/tandem-proxy/tandem/core/wire"
)

// maxRequest bounds a question: plan sends manifests.
const maxRequest = 64 << 20

// queries are all there are.
func queries() []query {
	return []query{Explain(), Outcomes(), Trace(), Drift(), Services(), History(), Top(), Preview()}
}

// queryRoute answers queries on the control socket.
func (p *Proxy) queryRoute() route {
	return route{"POST /query/{name}", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
		if err != nil {
			if errors.As(err, new(*http.MaxBytesError)) {
				err = fmt.Errorf("request larger than %d MiB: send fewer manifests at a time", maxRequest>>20)
			}
			reply(w, r, nil, err)
			return
		}
		kind := wire.Type(r.Header.Get("Accept"))
		begun := false
		last, err := p.ask(r.Context(), r.PathValue("name"), body, kind, func(part []byte) error {
			if !begun {
				w.Header().Set("Content-Type", kind)
				begun = true
			}
			_, err := bounded{w}.Write(part)
			return err
		})
		if err != nil && begun {
			panic(http.ErrAbortHandler) // so that nobody takes what was sent for all
		}
		send(w, kind, last, err)
	}}
}

// ask finds the query and returns its answer as content of a type: the last part, after send got those before.
// However many clients ask, one answer is made at a time, and beside it one of those that read the data plane: changes
// find a processor. What a client takes to read its answer is nobody's wait.
func (p *Proxy) ask(ctx context.Context, name string, body []byte, kind string, send func([]byte) error) (last []byte, err error) {
	all := queries()
	i := slices.IndexFunc(all, func(q query) bool { return q.name() == name })
	if i < 0 {
		return nil, fmt.Errorf("unknown query %.40q: is the running tandem another version?", name)
	}
	q, turn, limit := all[i], p.answers, answerLimit
	if q.reads() {
		turn, limit = p.kernel, readLimit
	}
	made, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := turn.take(made); err != nil {
		return nil, fmt.Errorf("other queries are answered: %w", err)
	}
	mine := true
	defer func() {
		if mine {
			turn.give()
		}
	}()
	found, err := q.ask(made, p, body)
	if err != nil {
		return nil, err
	}
	return wire.Encode(kind, found, func(part []byte) error {
		turn.give()
		if mine = false; send(part) != nil {
			return errDisconnected
		}
		again, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		err := turn.take(again)
		mine = err == nil
		return err
	})
}

var errDisconnected = errors.New("the client has disconnected")
