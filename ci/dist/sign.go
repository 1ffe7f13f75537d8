// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// signingKey is the environment variable with an Ed25519 private key in PEM (PKCS #8), as
// "openssl genpkey -algorithm ed25519" makes it. Without it nothing is signed.
const signingKey = "TANDEM_SIGNING_KEY"

// sign writes the signature of the checksums and the public key:
//
//	openssl pkeyutl -verify -rawin -pubin -inkey SHA256SUMS.pem -in SHA256SUMS -sigfile SHA256SUMS.sig
//
// To verify, compare that key with one from a trusted source.
func (r release) sign(context.Context) error {
	text := os.Getenv(signingKey)
	if text == "" {
		fmt.Printf("dist: %s is not set: checksums are not signed\n", signingKey)
		return nil
	}
	key, err := privateKey([]byte(text))
	if err != nil {
		return fmt.Errorf("%s: %w", signingKey, err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	path := filepath.Join(r.out, sums)
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(path+".sig", ed25519.Sign(key, content), 0o644),
		os.WriteFile(path+".pem", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644),
	)
}

func privateKey(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("is not PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("is no PKCS #8 key") // the error of the parser may quote it
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("is no Ed25519 key")
	}
	return key, nil
}
