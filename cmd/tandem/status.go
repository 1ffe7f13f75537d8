// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/platform/service"
)

func newStatus() *cobra.Command {
	var address, output string
	c := &cobra.Command{
		Use:     "status",
		Short:   "Show what the running tandem serves, what it rejected, and why",
		Example: "  tandem status\n  tandem status -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			doc, err := fetchStatus(cmd, address)
			if err != nil {
				return err
			}
			switch output {
			case "table":
				return doc.Write(cmd.OutOrStdout())
			case "json":
				return writeJSON(cmd.OutOrStdout(), doc)
			}
			return usageError{fmt.Errorf("-o %s: choose table or json", output)}
		},
	}
	c.Flags().StringVar(&address, "address", config.Default().HTTPAddress, "where the running tandem serves its status")
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return c
}

// hint says why a tandem may not answer.
func hint() string {
	switch state, _ := service.Status(); state {
	case service.Stopped:
		return "the service is stopped: run tandem start"
	case service.Running:
		return "the service runs: does it have another --metrics-bind-address?"
	}
	return "is it running, and with this --metrics-bind-address?"
}

// statusLimit bounds the answer: a cluster of 50,000 Services needs about 40 MB.
const statusLimit = 256 << 20

func fetchStatus(cmd *cobra.Command, address string) (doc status.Document, err error) {
	req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, "http://"+address+"/status", nil)
	if err != nil {
		return doc, usageError{fmt.Errorf("--address: %w", err)}
	}
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{Proxy: nil}}
	res, err := client.Do(req)
	if err != nil {
		return doc, fmt.Errorf("tandem does not answer at %s: %w; %s", address, err, hint())
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		return doc, fmt.Errorf("tandem at %s answered %s: %s", address, res.Status, text)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, statusLimit)).Decode(&doc); err != nil {
		return doc, fmt.Errorf("%s did not answer with a status of tandem: %w", address, err)
	}
	return doc, nil
}
