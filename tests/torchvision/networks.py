"""The networks that zoo.py holds dltrain to, and how they are exported: torchvision's classification models, all of
them, and one or more of each family of timm's, with random weights and statistics."""
import zlib

import torch
import torchvision.models as zoo

try:
    import timm
except ImportError:
    timm = None

# How a file is written: PyTorch's exporters (the default one and TorchScript's) with no other argument or with a name
# for the batch, and TorchScript's in training mode, which leaves every layer as it is.
WAYS = ("training", "dynamo-fixed", "dynamo-named", "script-fixed", "script-named")
CLASSES = 10

# One of each family, the smallest, with the smallest image that it takes.
TIMM = {
    "beit_base_patch16_224": 64, "botnet26t_256": 64, "halonet26t": 256, "lambda_resnet26t": 64, "repvgg_a0": 64,
    "gernet_s": 64, "mobileone_s0": 64, "cait_xxs24_224": 64, "coat_lite_tiny": 64, "convit_tiny": 64,
    "convmixer_768_32": 64, "convnext_atto": 64, "convnextv2_atto": 64, "crossvit_9_240": 240, "cspresnet50": 64,
    "cspdarknet53": 64, "davit_tiny": 64, "deit_tiny_distilled_patch16_224": 64, "densenet121": 64, "dla46_c": 64,
    "dpn48b": 64, "edgenext_xx_small": 64, "efficientformer_l1": 224, "efficientformerv2_s0": 64,
    "efficientnet_lite0": 64, "mixnet_s": 64, "tf_efficientnet_b0": 64, "fbnetc_100": 64, "efficientvit_b0": 64,
    "efficientvit_m0": 64, "eva02_tiny_patch14_224": 64, "fasternet_t0": 64, "fastvit_t8": 64,
    "focalnet_tiny_srf": 64, "gcvit_xxtiny": 64, "ghostnet_050": 64, "hardcorenas_a": 64, "hgnetv2_b0": 64,
    "hiera_tiny_224": 64, "hrnet_w18_small": 64, "inception_next_atto": 64, "inception_resnet_v2": 96,
    "inception_v3": 96, "inception_v4": 96, "levit_128s": 64, "mambaout_femto": 64, "coatnet_nano_rw_224": 64,
    "maxvit_tiny_rw_224": 64, "poolformer_s12": 64, "caformer_s18": 64, "mixer_s32_224": 64, "gmlp_s16_224": 64,
    "resmlp_12_224": 64, "mobilenetv3_small_050": 64, "mobilenetv4_conv_small": 64, "mobilevit_xxs": 64,
    "mobilevitv2_050": 64, "mvitv2_tiny": 64, "nasnetalarge": 64, "nest_tiny": 64, "nextvit_small": 64,
    "nf_regnet_b1": 64, "dm_nfnet_f0": 64, "pit_ti_224": 64, "pvt_v2_b0": 64, "rdnet_tiny": 64, "regnety_002": 64,
    "regnetz_b16": 64, "repghostnet_050": 64, "repvit_m0_9": 64, "res2net50_14w_8s": 64, "resnest14d": 64,
    "resnet10t": 64, "ecaresnet26t": 64, "resnetv2_50x1_bit": 64, "rexnet_100": 64, "selecsls42b": 64,
    "legacy_seresnet18": 64, "sequencer2d_s": 64, "shvit_s1": 64, "skresnet18": 64, "starnet_s050": 64,
    "swiftformer_xs": 64, "swin_tiny_patch4_window7_224": 64, "swinv2_tiny_window8_256": 64, "swinv2_cr_tiny_224": 64,
    "tiny_vit_5m_224": 64, "tnt_s_patch16_224": 64, "tresnet_m": 64, "twins_svt_small": 64, "visformer_tiny": 64,
    "vit_tiny_patch16_224": 64, "vit_tiny_r_s16_p8_224": 64, "vit_relpos_small_patch16_224": 64,
    "vitamin_small_224": 64, "volo_d1_224": 64, "ese_vovnet19b_slim_dw": 64, "xception41": 64, "legacy_xception": 64,
    "xcit_nano_12_p16_224": 64,
}


# One of each family of torchvision's, the smallest: they come first, with timm's.
FIRST = ("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
         "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf", "regnet_y_400mf", "resnet18",
         "resnet50", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_0", "squeezenet1_1", "swin_t", "swin_v2_t",
         "vgg11", "vgg11_bn", "vit_b_32", "wide_resnet50_2")
# These take longest, and come last.
LARGEST = ("vgg", "convnext_large", "efficientnet_b7", "efficientnet_v2_l", "regnet_y_32gf", "vit_l", "vit_h",
           "regnet_y_128gf")

# Scales and shifts of normalisations: few ReLUs behind them are so near to 0 that rounding decides whether they pass a
# gradient. By these activations of some deep networks grow from block to block until float32 has few digits left of the
# gradients, in timm/regnetz_b16 of the scores: those get less. And where nothing leads around the layers, images differ
# less and less against the shifts, until rounding decides which number is a pooling's largest: those get none.
USUAL, LESS, NONE = ((0.8, 1.2), (1, 3)), ((0.3, 0.5), (0.5, 1)), ((0.8, 1.2), (-0.1, 0.1))
FACTORS = dict.fromkeys(("vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn"), NONE) | dict.fromkeys((
    "regnet_y_128gf", "regnet_y_32gf", "resnet101", "resnet152", "resnext101_32x8d", "resnext101_64x4d",
    "wide_resnet101_2", "timm/convmixer_768_32", "timm/mobileone_s0", "timm/nextvit_small", "timm/regnetz_b16",
    "timm/repvit_m0_9"), LESS)


def names():
    """"NAME" of torchvision's and "timm/NAME": one of a family first, the largest last."""
    small = lambda name: -2 if name in FIRST or "/" in name else -1
    last = lambda name: next((place for place, start in enumerate(LARGEST) if name.startswith(start)), None)
    rank = lambda name: small(name) if name in FIRST or last(name) is None else last(name)
    return sorted(zoo.list_models(module=zoo) + [f"timm/{name}" for name in TIMM], key=rank)


def size_of(name):
    """As small as the model and PyTorch's exporter allow: adaptive poolings only where their windows are alike."""
    if name.startswith("timm/"):
        return TIMM[name.removeprefix("timm/")]
    sizes = {"alexnet": 224, "vgg": 224, "maxvit": 224, "inception": 139, "densenet": 112, "vit_h_14": 56, "vit": 64}
    return next((size for start, size in sizes.items() if name.startswith(start)), 64)


def made(name):
    how = {"num_classes": CLASSES}
    if name.startswith("timm/"):
        try:
            return timm.create_model(name.removeprefix("timm/"), img_size=size_of(name), **how)
        except TypeError:
            return timm.create_model(name.removeprefix("timm/"), **how)
    if name in ("googlenet", "inception_v3"):
        how |= {"init_weights": False, "aux_logits": False}
    if name.startswith("vit_"):
        how |= {"image_size": size_of(name)}
    return zoo.get_model(name, weights=None, **how)


def build(name):
    torch.manual_seed(1)
    net, factors = made(name), FACTORS.get(name, USUAL)
    with torch.no_grad():
        for parameter in net.parameters():
            # Numbers that are all alike are one tensor to the exporter, and a head of zeros hides what is before it.
            if parameter.numel() > 1 and (parameter == parameter.flatten()[0]).all():
                near_one = abs(parameter.flatten()[0].item() - 1) < 0.5
                size = 0.1 if parameter.dim() == 1 else 0.02
                parameter.uniform_(0.5, 1.5) if near_one else parameter.normal_(0, size)
            if parameter.dim() == 3 and parameter.shape[1:] == (1, 1):
                parameter.uniform_(0.2, 0.5)
        for module in net.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                module.weight.uniform_(*factors[0]), module.bias.uniform_(*factors[1])
        for key, tensor in net.named_buffers():
            if key.endswith("running_mean"):
                tensor.normal_(0, 0.1)
            elif key.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
    return net


def fixed_batch(name, way):
    """1 or 2: half of the networks have the one by one exporter, and the other by the other."""
    return 1 + (zlib.crc32(name.encode()) + way.startswith("script")) % 2


def export(name, file, way):
    """An export for training runs the model: the file has the running statistics as that leaves them."""
    size = size_of(name)
    images = torch.zeros(fixed_batch(name, way) if way.endswith("fixed") else 2, 3, size, size)
    written(build(name), images, file, way)


def written(net, images, file, way):
    how = {}
    if way == "training":
        how = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False, "opset_version": 17}
    if not way.startswith("dynamo"):
        how["dynamo"] = False
    if way == "dynamo-named":
        how["dynamic_shapes"] = ({0: torch.export.Dim("N")},)
    elif not way.endswith("fixed"):
        how |= {"input_names": ["images"], "dynamic_axes": {"images": {0: "N"}}}
    torch.onnx.export(net.train(way == "training"), (images,), str(file), **how)
