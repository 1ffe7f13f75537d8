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
		Short:   "Show what the running tandem serves, what it refused, and why",
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

// whereabouts says where a tandem that does not answer may be.
func whereabouts() string {
	switch state, _ := service.Status(); state {
	case service.Stopped:
		return "its service is stopped: tandem start"
	case service.Running:
		return "its service runs: was it given another --metrics-bind-address?"
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
		return doc, fmt.Errorf("no tandem answers at %s: %w; %s", address, err, whereabouts())
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		return doc, fmt.Errorf("tandem at %s answers %s: %s", address, res.Status, text)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, statusLimit)).Decode(&doc); err != nil {
		return doc, fmt.Errorf("the answer of %s is not a status of tandem: %w", address, err)
	}
	return doc, nil
}
