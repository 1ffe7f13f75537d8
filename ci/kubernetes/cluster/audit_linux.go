// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// auditPolicy writes one line for each completed request.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted, Panic]
rules:
- level: Metadata
`

// Request is a request in the API server's audit log.
type Request struct {
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	Verb      string `json:"verb"`
	ObjectRef struct {
		Resource string `json:"resource"`
		APIGroup string `json:"apiGroup"`
		Name     string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// Requests returns all requests that have ended, of a cluster that was started
// with Options.Audit. A watch ends when its client or its time does.
func (c *Cluster) Requests() (all []Request, err error) {
	f, err := os.Open(filepath.Join(c.Dir, "audit.log"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for d := json.NewDecoder(f); ; {
		var r Request
		switch err := d.Decode(&r); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // a line that is being written
			return all, nil
		case err != nil:
			return all, err
		}
		all = append(all, r)
	}
}
