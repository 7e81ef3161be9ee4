package restart

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cloudflare/circl/sign/mldsa/mldsa65"

	"github.com/qnetops/qnetops/node"
)

// signedProof is a certificate of six members whose first five signed with keys that follow from their names.
func signedProof(t testing.TB) (node.Proof, map[string]*mldsa65.PrivateKey) {
	t.Helper()
	p := node.Proof{Index: 2, Checkpoint: node.Checkpoint{Index: 6, WindowHeadHeight: 180, Timestamp: 7, Proposer: "m1"}, CommitteePubkeys: map[string]string{}}
	keys := map[string]*mldsa65.PrivateKey{}
	for i := range 6 {
		id := fmt.Sprintf("m%d", i+1)
		var seed [mldsa65.SeedSize]byte
		seed[0] = byte(i + 1)
		pub, key := mldsa65.NewKeyFromSeed(&seed)
		raw, err := pub.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		p.Committee, keys[id] = append(p.Committee, id), key
		p.CommitteePubkeys[id] = hex.EncodeToString(raw)
		if i < 5 {
			p.Signers = append(p.Signers, id)
		}
	}
	for _, id := range p.Signers {
		p.Sigs = append(p.Sigs, base64.StdEncoding.EncodeToString(vote(t, keys[id], "QNET_BFT2_VOTE:"+p.Checkpoint.Hash().String(), nil)))
	}
	return p, keys
}

func vote(t testing.TB, key *mldsa65.PrivateKey, text string, context []byte) []byte {
	t.Helper()
	sig := make([]byte, mldsa65.SignatureSize)
	if err := mldsa65.SignTo(key, []byte(text), context, false, sig); err != nil {
		t.Fatal(err)
	}
	if len(sig) != 3309 {
		t.Fatalf("%d bytes", len(sig)) // facts 2.5: ML-DSA-65
	}
	return sig
}

func TestCertificateSignatures(t *testing.T) {
	text := func(p *node.Proof) string { return node.VoteText(p.Checkpoint.Hash()) }
	set := func(sig string) func(*testing.T, *node.Proof, map[string]*mldsa65.PrivateKey) {
		return func(_ *testing.T, p *node.Proof, _ map[string]*mldsa65.PrivateKey) { p.Sigs[0] = sig }
	}
	raw := func(p *node.Proof) []byte {
		b, err := base64.StdEncoding.DecodeString(p.Sigs[0])
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	enveloped := func(form func([]byte) string) func(*testing.T, *node.Proof, map[string]*mldsa65.PrivateKey) {
		return func(_ *testing.T, p *node.Proof, _ map[string]*mldsa65.PrivateKey) { p.Sigs[0] = form(raw(p)) }
	}
	for name, c := range map[string]struct {
		change func(*testing.T, *node.Proof, map[string]*mldsa65.PrivateKey)
		want   Signatures
		reason string
	}{
		"as signed":       {nil, Signatures{Valid: 5}, ""},
		"hex":             {enveloped(func(b []byte) string { return hex.EncodeToString(b) }), Signatures{Valid: 5}, ""},
		"upper-case hex":  {enveloped(func(b []byte) string { return strings.ToUpper(hex.EncodeToString(b)) }), Signatures{Valid: 5}, ""},
		"named":           {enveloped(func(b []byte) string { return "mldsa65:v1:" + base64.StdEncoding.EncodeToString(b) }), Signatures{Valid: 5}, ""},
		"base64url":       {enveloped(func(b []byte) string { return "x:" + base64.RawURLEncoding.EncodeToString(b) }), Signatures{Valid: 5}, ""},
		"without padding": {enveloped(func(b []byte) string { return base64.RawStdEncoding.EncodeToString(b) }), Signatures{Valid: 5}, ""},
		"one bit":         {enveloped(func(b []byte) string { b[100] ^= 1; return hex.EncodeToString(b) }), Signatures{Valid: 4, Invalid: 1}, ""},
		"one byte short":  {enveloped(func(b []byte) string { return hex.EncodeToString(b[1:]) }), Signatures{Valid: 4, Unreadable: 1}, "envelope is not understood"},
		"broken lines":    {enveloped(func(b []byte) string { s := base64.StdEncoding.EncodeToString(b); return s[:80] + "\n" + s[80:] }), Signatures{Valid: 4, Unreadable: 1}, "envelope"},
		"not printable":   {set(""), Signatures{Valid: 4, Unreadable: 1}, "not served"},
		"another form":    {set("{sig}"), Signatures{Valid: 4, Unreadable: 1}, "envelope is not understood"},
		"another's":       {func(_ *testing.T, p *node.Proof, _ map[string]*mldsa65.PrivateKey) { p.Sigs[0] = p.Sigs[1] }, Signatures{Valid: 4, Invalid: 1}, ""},
		"another text": {func(t *testing.T, p *node.Proof, k map[string]*mldsa65.PrivateKey) {
			p.Sigs[0] = hex.EncodeToString(vote(t, k["m1"], "QNET_BFT2_VOTE:0", nil))
		}, Signatures{Valid: 4, Invalid: 1}, ""},
		"with a context": {func(t *testing.T, p *node.Proof, k map[string]*mldsa65.PrivateKey) {
			p.Sigs[0] = hex.EncodeToString(vote(t, k["m1"], text(p), []byte("c")))
		}, Signatures{Valid: 4, Invalid: 1}, ""},
		"a field changed": {func(_ *testing.T, p *node.Proof, _ map[string]*mldsa65.PrivateKey) { p.Checkpoint.TotalSupply++ }, Signatures{Invalid: 5}, "context or a text"},
		"no key":          {func(_ *testing.T, p *node.Proof, _ map[string]*mldsa65.PrivateKey) { delete(p.CommitteePubkeys, "m1") }, Signatures{Valid: 4, Unreadable: 1}, "public key is not served"},
		"key cut off": {func(_ *testing.T, p *node.Proof, _ map[string]*mldsa65.PrivateKey) {
			p.CommitteePubkeys["m1"] = p.CommitteePubkeys["m1"][2:]
		}, Signatures{Valid: 4, Unreadable: 1}, "1952 bytes"},
		"another's key": {func(_ *testing.T, p *node.Proof, _ map[string]*mldsa65.PrivateKey) {
			p.CommitteePubkeys["m1"] = p.CommitteePubkeys["m2"]
		}, Signatures{Valid: 4, Invalid: 1}, ""},
		"signer twice": {func(_ *testing.T, p *node.Proof, _ map[string]*mldsa65.PrivateKey) {
			p.Signers[1], p.Sigs[1] = p.Signers[0], p.Sigs[0]
		}, Signatures{Valid: 4, Unreadable: 1}, "twice"},
		"no member":        {func(_ *testing.T, p *node.Proof, _ map[string]*mldsa65.PrivateKey) { p.Committee = p.Committee[1:] }, Signatures{Valid: 4, Unreadable: 1}, "not in the committee"},
		"fewer signatures": {func(_ *testing.T, p *node.Proof, _ map[string]*mldsa65.PrivateKey) { p.Sigs = p.Sigs[:4] }, Signatures{Valid: 4, Unreadable: 1}, "not served"},
		"none":             {func(_ *testing.T, p *node.Proof, _ map[string]*mldsa65.PrivateKey) { p.Signers, p.Sigs = nil, nil }, Signatures{}, ""},
	} {
		p, keys := signedProof(t)
		p.Sigs, p.Signers = slices.Clone(p.Sigs), slices.Clone(p.Signers)
		certificates := NewCertificates()
		before := certificates.Verify(p)
		if before != (Signatures{Valid: 5}) {
			t.Fatalf("unchanged: %+v", before)
		}
		if c.change != nil {
			c.change(t, &p, keys)
		}
		// What was checked before must not be remembered for what was changed, and the second time gives the same.
		for range 2 {
			got := certificates.Verify(p)
			reason := got.Reason
			got.Reason = ""
			if got != c.want || !strings.Contains(reason, c.reason) || c.reason == "" && reason != "" {
				t.Errorf("%s: %+v %q", name, got, reason)
			}
		}
	}
}

// FuzzEnvelope: whatever an envelope holds, it is a signature of 3309 bytes or none.
func FuzzEnvelope(f *testing.F) {
	p, _ := signedProof(f)
	f.Add(p.Sigs[0])
	f.Add("a:b:" + strings.Repeat("0f", 3309))
	f.Fuzz(func(t *testing.T, s string) {
		sig, err := openEnvelope(s)
		if (err == nil) != (len(sig) == 3309) {
			t.Fatalf("%d bytes, %v", len(sig), err)
		}
	})
}

// BenchmarkCertificate checks one certificate of six members for the first time, and then on another node.
func BenchmarkCertificate(b *testing.B) {
	p, _ := signedProof(b)
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			NewCertificates().Verify(p)
		}
	})
	b.Run("again", func(b *testing.B) {
		c := NewCertificates()
		for b.Loop() {
			c.Verify(p)
		}
	})
}
