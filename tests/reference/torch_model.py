"""The implementation that is to be equalled: transformers, on the processor."""
import numpy as np
import torch
import transformers
from transformers import LightOnOcrConfig, LightOnOcrForConditionalGeneration

ATTENTION = "sdpa"  # the default of transformers; "eager" rounds more in bf16

torch.set_float32_matmul_precision("highest")
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.mkldnn.matmul.fp32_precision = "ieee"
torch.backends.mkldnn.conv.fp32_precision = "ieee"
torch.use_deterministic_algorithms(True)
transformers.logging.set_verbosity_error()


def checked(model, dtype):
    for name, buffer in model.named_buffers():
        if "inv_freq" in name:
            assert buffer.dtype == torch.float32, name
    for name, parameter in model.named_parameters():
        assert parameter.dtype == dtype, name
    return model.eval()


def from_folder(folder, dtype):
    model = LightOnOcrForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, attn_implementation=ATTENTION)
    return checked(model, dtype)


def from_tensors(config, tensors, dtype):
    """`config` as in config.json; float32 arrays under published names."""
    config = LightOnOcrConfig(**config, attn_implementation=ATTENTION)
    model = LightOnOcrForConditionalGeneration(config)
    patch = config.vision_config.patch_size
    state = {name: torch.from_numpy(t) for name, t in tensors.items()}
    conv = "model.vision_encoder.patch_conv.weight"
    state[conv] = state[conv].reshape(-1, 3, patch, patch)
    lacking, unknown = model.load_state_dict(state, strict=False)
    assert lacking in ([], ["lm_head.weight"]) and not unknown, (lacking, unknown)
    model.tie_weights()
    return checked(model.to(dtype), dtype)


class Page:
    """A resized page in front of a model."""

    def __init__(self, model, rgb, mean, std):
        self.model = model
        pixels = (rgb * (1 / 255)).astype(np.float32)
        pixels = (pixels - np.array(mean, np.float32)) / np.array(std, np.float32)
        self.image = {
            "pixel_values": torch.from_numpy(pixels.transpose(2, 0, 1)[None].copy()),
            "image_sizes": torch.tensor([rgb.shape[:2]]),
        }

    @torch.no_grad()
    def features(self):
        out = self.model.get_image_features(**self.image)
        return out.pooler_output[0].double().numpy()

    @torch.no_grad()
    def generate(self, prompt, limit, stop):
        """Greedy ids behind the prompt, with a stop id if there is one."""
        prompt = torch.tensor([prompt])
        ids = self.model.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), **self.image,
            do_sample=False, max_new_tokens=limit, eos_token_id=stop,
            pad_token_id=stop[0])
        return ids[0, prompt.shape[1]:].tolist()

    @torch.no_grad()
    def logits(self, ids, last):
        out = self.model(input_ids=torch.tensor([ids]), **self.image,
                         logits_to_keep=last)
        return out.logits[0].double().numpy()
