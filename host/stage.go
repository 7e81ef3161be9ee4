package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// pair is a container and what its successor would be made of.
type pair struct {
	oldRaw   json.RawMessage
	old      object
	creation Creation
	newID    string // image id of the new image, "" while it is not on the host
}

// plan reads the old container and both images and computes the creation.
func (h *hostOps) plan(ctx context.Context, container, image string, set, oneShot []EnvVar) (pair, error) {
	var p pair
	var err error
	if !ValidContainerName(container) {
		return p, errorf(CodeBadRequest, "", "container name %q is not one Docker takes", container)
	}
	if p.oldRaw, p.old, err = h.eng.inspect(ctx, container); err != nil {
		return p, fmt.Errorf("reading container %s: %w", container, err)
	}
	oldImage, _, err := h.eng.image(ctx, str(p.old, "Image"))
	if isCode(err, CodeNotFound) {
		return p, errorf(CodeNotFound, "pull the image that "+container+" was made from again", "the image of %s is no longer on this host: its defaults, which are not to be carried, cannot be told from settings", container)
	}
	if err != nil {
		return p, fmt.Errorf("reading the image of %s: %w", container, err)
	}
	newRaw, newImage, err := h.eng.image(ctx, image)
	if err != nil && !isCode(err, CodeNotFound) {
		return p, fmt.Errorf("reading image %s: %w", image, err)
	}
	p.newID = str(newImage, "Id")
	info, err := h.eng.info(ctx)
	if err != nil {
		return p, err
	}
	api, _ := h.eng.facts()
	opts := CarryOptions{Image: image, SetEnv: set, OneShot: oneShot, HostName: info.Name, MACInEndpoint: api >= endpointMAC}
	p.creation, err = BuildCreate(p.oldRaw, oldImage, newRaw, opts)
	return p, err
}

func (h *hostOps) carry(ctx context.Context, req CarryRequest) (CarryReport, error) {
	image := req.ImageDigest
	if !localID(image) {
		if _, err := parseReference(image); err != nil {
			return CarryReport{}, err
		}
	}
	p, err := h.plan(ctx, req.Container, image, req.SetEnv, req.OneShot)
	return p.creation.Report, err
}

// stage creates the successor, or takes the one that an earlier try of the same
// operation has left, and compares.
func (h *hostOps) stage(ctx context.Context, req StageRequest, log *txLog) (StageReport, error) {
	if err := validNames(req.Container, req.NextName); err != nil {
		return StageReport{}, err
	}
	if !localID(req.ImageDigest) {
		if _, err := parseReference(req.ImageDigest); err != nil {
			return StageReport{}, err
		}
	}
	p, err := h.plan(ctx, req.Container, req.ImageDigest, req.SetEnv, req.OneShot)
	if err != nil {
		return StageReport{}, err
	}
	if p.newID == "" {
		return StageReport{}, errorf(CodeNotFound, "pull it first", "image %s is not on this host", req.ImageDigest)
	}
	if id, rep, err := h.reuse(ctx, req, p); err != nil || id != "" {
		if err != nil {
			return StageReport{}, err
		}
		return rep, h.logStage(ctx, log, req, p, rep)
	}
	if err := log.add(TxEntry{Step: stepCreate, State: TxIntent, Text: req.NextName}); err != nil {
		return StageReport{}, err
	}
	id, err := h.make(ctx, req.NextName, p.creation)
	if err != nil {
		err = redact(err, p.old)
		if ctx.Err() == nil {
			err = errors.Join(err, log.add(TxEntry{Step: stepCreate, State: TxFailed, Text: err.Error()}))
		}
		return StageReport{}, err
	}
	rep, err := h.judge(ctx, id, p)
	if err != nil {
		return StageReport{}, err
	}
	return rep, h.logStage(ctx, log, req, p, rep)
}

// reuse takes a successor of that name if it is one: never started, of the right
// image, without an unexplained difference. Another never-started one of ours is
// replaced; anything else is a conflict.
func (h *hostOps) reuse(ctx context.Context, req StageRequest, p pair) (string, StageReport, error) {
	_, o, err := h.eng.inspect(ctx, req.NextName)
	if isCode(err, CodeNotFound) {
		return "", StageReport{}, nil
	}
	if err != nil {
		return "", StageReport{}, err
	}
	if str(sub(o, "State"), "Status") != "created" || str(o, "Id") == str(p.old, "Id") {
		return "", StageReport{}, errorf(CodeConflict, "", "a container named %s exists and has been started", req.NextName)
	}
	rep, err := h.judge(ctx, str(o, "Id"), p)
	if err != nil {
		return "", StageReport{}, err
	}
	if str(o, "Image") == p.newID && len(rep.Unexplained) == 0 {
		return rep.NextID, rep, nil
	}
	if err := h.eng.remove(ctx, str(o, "Id")); err != nil {
		return "", StageReport{}, fmt.Errorf("removing an earlier successor that was never started: %w", err)
	}
	return "", StageReport{}, nil
}

// make creates the container and joins its further networks.
func (h *hostOps) make(ctx context.Context, name string, c Creation) (string, error) {
	id, err := h.eng.create(ctx, name, c.Body)
	if err != nil {
		return "", fmt.Errorf("creating the successor: %w", err)
	}
	for _, n := range c.Networks {
		if err := h.eng.connect(ctx, n.Name, id, n.Endpoint); err != nil {
			return id, fmt.Errorf("joining the successor to network %s: %w", n.Name, err)
		}
	}
	return id, nil
}

// judge compares what the engine made with what was there.
func (h *hostOps) judge(ctx context.Context, id string, p pair) (StageReport, error) {
	raw, o, err := h.eng.inspect(ctx, id)
	if err != nil {
		return StageReport{}, fmt.Errorf("reading the successor: %w", err)
	}
	rep := StageReport{CarryReport: p.creation.Report, OldID: str(p.old, "Id"), NextID: str(o, "Id")}
	rep.Unexplained = Compare(p.oldRaw, raw, p.creation.Report)
	if rep.Unexplained == nil {
		rep.Unexplained = []Difference{}
	}
	rep.DataDir = judgeData(DataDirCheck{Old: dataDirOf(p.old), New: dataDirOf(o)})
	return rep, nil
}

func (h *hostOps) logStage(ctx context.Context, log *txLog, req StageRequest, p pair, rep StageReport) error {
	_, o, err := h.eng.inspect(ctx, rep.NextID)
	if err != nil {
		return err
	}
	return log.add(TxEntry{Step: stepCreate, State: TxDone, Stage: &TxStage{OldID: rep.OldID, NextID: rep.NextID, NextName: req.NextName,
		OldPrint: fingerprint(p.old), NextPrint: fingerprint(o), Unexplained: len(rep.Unexplained), DataOK: rep.DataDir.OK,
		DataPath: rep.DataDir.Old.HostPath, Policy: policyFrom(p.old)}})
}

// discard removes a successor that was never started.
func (h *hostOps) discard(ctx context.Context, name string, log *txLog) error {
	_, o, err := h.eng.inspect(ctx, name)
	if isCode(err, CodeNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if str(sub(o, "State"), "Status") != "created" {
		return errorf(CodeConflict, "", "container %s has been started: it is not a staged successor", name)
	}
	if err := log.add(TxEntry{Step: txDiscard, State: TxIntent, Text: name}); err != nil {
		return err
	}
	if err := h.eng.remove(ctx, str(o, "Id")); err != nil && !isCode(err, CodeNotFound) {
		return errors.Join(err, log.add(TxEntry{Step: txDiscard, State: TxFailed, Text: err.Error()}))
	}
	return log.add(TxEntry{Step: txDiscard, State: TxDone, Text: name})
}

// redact keeps values of variables out of an engine's words about a creation.
func redact(err error, inspect object) error {
	secrets := []string{}
	for _, e := range parseEnv(texts(sub(inspect, "Config"), "Env")) {
		if len(e.value) >= 4 {
			secrets = append(secrets, e.value)
		}
	}
	msg := blot(err.Error(), append(secretsOf(inspect, nil), secrets...))
	var e *Error
	if errors.As(err, &e) {
		return &Error{Code: e.Code, Message: msg, HintText: e.HintText}
	}
	if strings.TrimSpace(msg) == err.Error() {
		return err
	}
	return errorf(CodeInternal, "", "%s", msg)
}
